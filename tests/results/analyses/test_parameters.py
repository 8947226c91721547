"""Numbers kept, trained and sent: the papers' counts, and those of real runs."""

from __future__ import annotations

import pytest
from clips import CONFIG, save_clip

from fedray.__main__ import main
from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.core import algorithms
from fedray.models.clip import load_clip
from fedray.results.analyses.parameters import costs

DIGITS = {"data.image_size": 32, "data.samples": 60, "data.clients": 2}
RANDOM_VIT = {
    "name": "openclip",
    "model": "ViT-B-16-quickgelu",
    "pretrained": "random",
    "path": None,
}


@pytest.fixture(scope="module", autouse=True)
def _one_clip():
    """It is made once, and leaves its memory behind."""
    yield
    load_clip.cache_clear()


@pytest.fixture(scope="module")
def wide_clip(tmp_path_factory):
    """A CLIP with ViT-B/16's widths, two blocks and four patches: prompts have the same sizes."""
    folder = tmp_path_factory.mktemp("wide_clip")
    vision = {"image_size": 32, "patch_size": 16, "width": 768, "layers": 2, "head_width": 64}
    text = {**CONFIG["text_cfg"], "context_length": 77, "width": 512, "heads": 8, "layers": 2}
    save_clip(folder, config={"embed_dim": 512, "vision_cfg": vision, "text_cfg": text})
    return folder


@pytest.mark.parametrize(
    ("method", "hparams", "trained", "sent"),
    [
        ("fedmgp", {}, 12_800, 5_120),
        ("promptfl", {}, 8_192, 8_192),
        ("fedotp", {}, 16_384, 8_192),
        ("promptfolio", {}, 16_384, 8_192),
        ("fedpgp", {"copies": 2}, 24_832, 16_384),
        # Table 3 has 4,208,128: FedMGP's port counts a context of 4 tokens that nothing uses.
        ("fedtpg", {}, 4_208_128 - 4 * 512, 4_208_128 - 4 * 512),
        ("zero_shot", {}, 0, 0),
        ("local_prompts", {}, 8_192, 0),
    ],
)
def test_fedmgp_s_table_3(assemble, wide_clip, method, hparams, trained, sent):
    changes = {f"algorithm.{name}": value for name, value in hparams.items()}
    clip = {"name": "openclip", "path": str(wide_clip)}
    experiment = assemble(method, {**DIGITS, **changes, "model.clip": clip}).experiment
    client, server = costs(experiment)
    assert client.trained == trained
    for traffic in (client.up, client.down):
        assert sum(n for kind, n in traffic.params.items() if kind != "statistics") == sent
    assert client.memory == 4 * client.parameters
    assert client.parameters > 10**6  # the frozen towers
    assert server.trained == 0


@pytest.mark.long
def test_with_a_whole_vit_b_16(assemble):
    changes = {**DIGITS, "data.image_size": 224, "model.clip": RANDOM_VIT}
    client, _ = costs(assemble("fedmgp", changes).experiment)
    assert client.trained == 12_800
    assert client.parameters - 12_800 + 1 == 149_620_737  # and the logarithm of CLIP's scale


def test_fedtsp_s_cost(assemble):
    """Of the language model clients hold, get and train nothing; they send what they hold."""
    assembly = assemble("fedtsp", {**DIGITS, "algorithm.server_epochs": 1})
    *clients, server = costs(assembly.experiment)
    classes, d = assembly.setting.num_classes, assembly.setting.feature_dim
    held = (assembly.data.train_histogram() > 0).sum(1)
    assert [client.side for client in clients] == ["client (mlp)", "client (cnn2)"]
    for number, client in enumerate(clients):
        model = assembly.models.empty(assembly.models.architectures[number])
        whole = sum(parameter.numel() for parameter in model.parameters())
        assert client.trained == client.parameters == whole
        assert client.up.params == {"prototypes": held[number] * d, "statistics": 2 * held[number]}
        assert client.down.params == {"prototypes": classes * d, "statistics": 1}
        assert client.up.bytes["prototypes"] == 4 * held[number] * d
        assert client.down.bytes["prototypes"] == 4 * classes * d
    assert 0 < server.trained < server.parameters / 2  # prompts, and a frozen encoder


@pytest.mark.parametrize("method", ["fedtsp", "fedproto", "fedavg", "scaffold", "fedglcl"])
def test_it_is_what_a_run_sends(assemble, run, method):
    changes = {"data.clients": 1, "data.samples": 120, "model.group": "cnn2", "rounds": 1}
    if method == "fedtsp":
        changes["algorithm.server_epochs"] = 1
    client, _ = costs(assemble(method, changes).experiment)
    last = run(method, changes).results[-1]
    assert client.up.params == last.up.params
    assert client.up.bytes == last.up.bytes
    assert client.down.params == last.down.params
    assert client.down.bytes == last.down.bytes


@pytest.mark.long
@pytest.mark.parametrize("method", algorithms.names())
def test_every_method_has_its_cost(assemble, method):
    wants = algorithms.get(method)
    changes = dict(DIGITS)
    if wants.requires.prompts:
        changes["data.image_size"] = 8
    else:
        changes["model.group"] = "cnn2"
    if wants.requires.validation:
        changes["data.validation_fraction"] = 0.2
    *clients, _ = costs(assemble(method, changes).experiment)
    for client in clients:
        assert 0 <= client.trained <= client.parameters
        assert (client.trained > 0) == (method != "zero_shot")


def test_the_table_has_80_columns_and_says_what_readers_learn(capsys):
    words = ["cost", "fedproto_digits", "data.samples=60", "data.clients=2"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fedproto on digits")
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    learned = text.partition("- the server and eavesdroppers learn: ")[2]
    of_server, _, of_others = learned.partition("- other clients and eavesdroppers learn: ")
    assert PrototypeSharing.up.reveals() in of_server
    assert FedProto.down.reveals() in of_others
    (mlp,) = (line for line in lines if line.strip().startswith("client (mlp) "))
    assert mlp.split()[2] == mlp.split()[3]  # a client trains its whole model


def test_what_it_cannot_resolve_is_refused(capsys):
    assert main(["cost", "fedproto_digit"]) == 2
    assert "Did you mean 'fedproto_digits'?" in capsys.readouterr().err
