"""Text towers of CLIP models from open_clip, run block by block so that prompts can be inserted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any, Self, TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedray.language.encoders.base import (
    EncoderChoice,
    TokenEncoder,
    Tokens,
    encoders,
    freeze,
    pick,
    same_bits,
    warn_cut,
)
from fedray.language.encoders.clip_weights import (
    OpenClipParams,
    WeightSource,
    build_clip,
    locate,
)
from fedray.language.encoders.weights import check_ids

MODEL_DEFAULT = "ViT-B-32-quickgelu"

Changes: TypeAlias = Mapping[str, Tensor]
"""Changes of a frozen tower's parameters, by name, which are added to them (low-rank updates).

Names are those of open_clip, for example "transformer.resblocks.0.attn.in_proj_weight" [3w, w].
"""
Branches: TypeAlias = Mapping[str, Callable[[Tensor], Tensor]]
"""Functions of a module's input [T, n, w], by the name of the module in a frozen tower, for example
"transformer.resblocks.0". Their results are added to the module's output (parallel adapters)."""
NONE: Mapping[str, Any] = MappingProxyType({})
"""No changes, or no branches."""


class OpenClipText(TokenEncoder):
    """open_clip's standard text tower (`TextTransformer`).

    It applies token embeddings, positions, the transformer and the final layer norm, reads one
    position, and projects it. Without prompts the result equals `encode_text`. If the tower is
    causal and reads the end token, padding after the last end token of all texts is cut off, which
    does not change results.

    Args:
        tower: an `open_clip` TextTransformer with its weights.
        tokenizer: open_clip's tokenizer of the model.
        identity: see `TextEncoder`.
    """

    def __init__(self, tower: Any, tokenizer: Any, identity: str) -> None:
        self.identity, self._tower, self._tokenizer = identity, tower, tokenizer
        freeze(tower)
        self.dim = int(tower.width if tower.text_projection is None else tower.output_dim)
        self._cuts = tower.attn_mask is not None and tower.pool_type in ("argmax", "eos")

    def weights(self) -> Iterable[Tensor]:
        return cast(Iterable[Tensor], self._tower.parameters())

    @property
    def token_width(self) -> int:
        return int(self._tower.token_embedding.embedding_dim)

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self._tower.transformer.resblocks)

    @property
    def limit(self) -> int:
        return int(self._tower.context_length)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts; cut padding after the last end token if results do not depend on it."""
        return self.tokens(texts).to(self._tower.positional_embedding.device)

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of `tokenize` on the CPU, for work that must not wait for a device."""
        ids: Tensor = self._tokenizer(list(texts), context_length=self.limit)
        longer = self._tokenizer(list(texts), context_length=self.limit + 1)
        # a text that is cut ends earlier with its end token
        warn_cut(texts, (longer[:, :-1] != ids).any(1).tolist(), self.limit)
        check_ids(ids, self._tower.token_embedding.num_embeddings)
        read = self._read(ids)
        if self._cuts:
            ids = ids[:, : int(read.max()) + 1]
            mask = torch.arange(ids.shape[1]) <= read.unsqueeze(1)
        else:
            mask = torch.ones_like(ids, dtype=torch.bool)
        return Tokens(ids, mask, read)

    def embed(self, tokens: Tokens) -> Tensor:
        embedded: Tensor = self._tower.token_embedding(tokens.ids)
        return embedded

    def encode(
        self,
        embeddings: Tensor,
        tokens: Tokens,
        deep: Sequence[Tensor] = (),
        weights: Changes = NONE,
        branches: Branches = NONE,
    ) -> Tensor:
        """Return outputs [T, d], differentiable in `embeddings` [T, n, d'] and all additions.

        The output is read at the position of the original text's end token, even if a prompt
        replaced that token. Without branches, the last block is computed there alone.

        Args:
            embeddings: see `TokenEncoder.encode`, as `tokens`.
            tokens: the tokens of the texts.
            deep: prompts [l, d'] that replace positions 1..l at the inputs of blocks 1, 2, ...
                (MaPLe).
            weights: see `Changes`.
            branches: see `Branches`.
        """
        run = partial(self._encode, embeddings, tokens, deep, is_whole=bool(branches))
        return with_additions(self._tower, run, weights, branches)

    def _encode(
        self, embeddings: Tensor, tokens: Tokens, deep: Sequence[Tensor], *, is_whole: bool
    ) -> Tensor:
        tower, n = self._tower, embeddings.shape[1]
        mask = None if tower.attn_mask is None else tower.attn_mask[:n, :n]
        hidden = embeddings + tower.positional_embedding[:n]
        with same_bits(embeddings.device):
            blocks = tower.transformer.resblocks
            if is_whole:
                hidden = run_blocks(blocks, hidden, deep, 1, mask)
                return self._project(pick(hidden, tokens.read))
            hidden = run_blocks(blocks[:-1], hidden, deep, 1, mask)
            if 0 < len(blocks) - 1 <= len(deep):
                hidden = replaced(hidden, deep[len(blocks) - 2], 1)
            return self._project(_block_at(blocks[-1], hidden, tokens.read, mask))

    @property
    def shares_prefixes(self) -> bool:
        """True if `encode_after` is possible: a causal tower that reads the end token."""
        return self._cuts

    def encode_after(
        self,
        prefixes: Tensor,
        suffixes: Tensor,
        tokens: Tokens,
        deep: Sequence[Tensor] = (),
        weights: Changes = NONE,
    ) -> Tensor:
        """Return outputs of texts with a common prefix, which is computed once for all of them.

        In a causal tower, the positions of a common prefix do not attend to what follows. Computing
        them once for all T texts is exact and saves most of the work if prompts are long. The last
        block is computed only at the positions that are read.

        Args:
            prefixes: the start token and prompt of each of G groups [G, p, d'].
            suffixes: the rest of each text [T, n-p, d'].
            tokens: the tokens of the T whole texts, of length n.
            deep: see `encode`.
            weights: see `Changes`; blocks run in parts, so that they cannot have `Branches`.

        Returns:
            [G*T, d], group by group.
        """
        run = partial(self._encode_after, prefixes, suffixes, tokens, deep)
        return with_additions(self._tower, run, weights)

    def _encode_after(
        self, prefixes: Tensor, suffixes: Tensor, tokens: Tokens, deep: Sequence[Tensor]
    ) -> Tensor:
        tower, groups, p = self._tower, len(prefixes), prefixes.shape[1]
        n = p + suffixes.shape[1]
        positions = tower.positional_embedding[:n]
        first = prefixes + positions[:p]
        after = (suffixes + positions[p:]).repeat(groups, 1, 1)
        mask = tower.attn_mask[:n, :n]
        blocks = tower.transformer.resblocks
        with same_bits(prefixes.device):
            for index, block in enumerate(blocks):
                if 0 < index <= len(deep):
                    first = replaced(first, deep[index - 1], 1)
                if index < len(blocks) - 1:
                    first, after = _block_after(block, first, after, mask)
            read = tokens.read.repeat(groups) - p
            return self._project(_block_at(blocks[-1], after, read, mask, first))

    def _project(self, output: Tensor) -> Tensor:
        projection, output = self._tower.text_projection, self._tower.ln_final(output)
        if isinstance(projection, torch.nn.Linear):
            output = projection(output)
        elif projection is not None:
            output = output @ projection
        return output.float()  # autocast gives bfloat16

    def to(self, device: torch.device) -> Self:
        self._tower.to(device)
        return self

    def _read(self, ids: Tensor) -> Tensor:
        kind = self._tower.pool_type
        if kind == "argmax":
            return ids.argmax(1)  # the end token has the largest id
        if kind == "eos":
            is_end: Tensor = ids == self._tower.eos_id
            return is_end.int().argmax(1)
        return torch.full((len(ids),), ids.shape[1] - 1 if kind == "last" else 0)


@encoders.add
class OpenClipChoice(OpenClipParams, EncoderChoice):
    """The text tower of a CLIP model of open_clip, by tag or file."""

    name = "openclip"
    paper = "Radford et al., CLIP, ICML 2021; Ilharco et al., OpenCLIP, 2021"

    def source(self) -> WeightSource:
        """Return the source of the weights; raise a UserError as `locate`."""
        return locate(self, "text.encoder", MODEL_DEFAULT)

    def identity(self) -> str:
        return self.source().identity

    def width(self) -> int:
        return int(self.source().config()["embed_dim"])

    def build(self) -> OpenClipText:
        source = self.source()
        return OpenClipText(build_clip(source, text_only=True), source.tokenizer(), source.identity)


class _Holder(torch.nn.Module):
    """A module that runs a function which uses a tower, so that its parameters can be replaced."""

    def __init__(self, tower: torch.nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


R = TypeVar("R")


def with_additions(
    tower: torch.nn.Module,
    function: Callable[[], R],
    weights: Changes = NONE,
    branches: Branches = NONE,
) -> R:
    """Return the result of a function that uses a tower, with additions to the tower.

    Raises:
        KeyError: if a name is not the tower's.
    """
    if not weights and not branches:
        return function()
    frozen, modules = dict(tower.named_parameters()), dict(tower.named_modules())
    changed = {f"tower.{name}": frozen[name] + change for name, change in weights.items()}
    with ExitStack() as stack:
        for name, branch in branches.items():
            stack.enter_context(_branching(modules[name], branch))
        result: R = functional_call(_Holder(tower), changed, (function,))
    return result


def _branching(module: torch.nn.Module, branch: Callable[[Tensor], Tensor]) -> Any:
    """Return a context in which a branch of a module's input is added to the module's output."""
    return module.register_forward_hook(lambda _, inputs, output: output + branch(inputs[0]))


def run_blocks(
    blocks: torch.nn.ModuleList,
    hidden: Tensor,
    deep: Sequence[Tensor],
    start: int,
    mask: Tensor | None = None,
) -> Tensor:
    """Run [T, n, w] through a transformer's blocks, with prompts between them (MaPLe).

    The i-th of the prompts `deep`, [l, w] or [T, l, w], replaces l positions from `start` on at the
    input of block i+1; a negative `start` counts from the end.
    """
    for index, block in enumerate(blocks):
        if 0 < index <= len(deep):
            hidden = replaced(hidden, deep[index - 1], start)
        hidden = block(hidden, attn_mask=mask)
    return hidden


def replaced(hidden: Tensor, prompt: Tensor, start: int) -> Tensor:
    """Replace l positions of [T, n, w] from `start` on by a prompt [l, w] or [T, l, w]."""
    prompts = prompt.to(hidden.dtype).expand(len(hidden), -1, -1)
    first = start % hidden.shape[1]
    end = first + prompts.shape[1]
    return torch.cat([hidden[:, :first], prompts, hidden[:, end:]], dim=1)


def _block_after(block: Any, first: Tensor, after: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Run a residual attention block on prefixes [G, p, w] and their suffixes [G*T, m, w].

    A suffix attends to its prefix and, causally, to itself.
    """
    p = first.shape[1]
    q1, k1, v1 = _heads(block, first)
    q2, k2, v2 = _heads(block, after)
    return (
        _attended(block, first, q1, k1, v1, mask[:p, :p]),
        _attended(block, after, q2, _concatenated(k1, k2), _concatenated(v1, v2), mask[p:]),
    )


def _block_at(
    block: Any, x: Tensor, read: Tensor, mask: Tensor | None, first: Tensor | None = None
) -> Tensor:
    """Run a residual attention block only at position `read` [T] of each text: [T, n, w] to [T, w].

    With prefixes `first` [G, p, w], `x` are their suffixes [G*T, m, w], which attend to them, too.
    """
    q, k, v = _heads(block, x)
    place = read
    if first is not None:
        _, k1, v1 = _heads(block, first)
        k, v, place = _concatenated(k1, k), _concatenated(v1, v), first.shape[1] + read
    query = pick(q.transpose(1, 2), read).unsqueeze(2)
    visible = None if mask is None else mask[place][:, None, None]
    return _attended(block, pick(x, read).unsqueeze(1), query, k, v, visible).squeeze(1)


def _heads(block: Any, x: Tensor) -> Iterator[Tensor]:
    """Yield a block's queries, keys and values of [T, n, w], each [T, heads, n, w/heads]."""
    attention, (texts, n, _) = block.attn, x.shape
    qkv = F.linear(block.ln_1(x), attention.in_proj_weight, attention.in_proj_bias)
    for part in qkv.chunk(3, dim=-1):
        yield part.reshape(texts, n, attention.num_heads, -1).transpose(1, 2)


def _concatenated(first: Tensor, after: Tensor) -> Tensor:
    """Put the keys or values of G prefixes in front of those of their G*T suffixes."""
    times = len(after) // len(first)
    return torch.cat([first.repeat_interleave(times, dim=0), after], dim=2)


def _attended(
    block: Any, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> Tensor:
    """Return a block's output, given its queries, keys and values and its input x [T, n, w]."""
    added_mask = None if mask is None else mask.to(q.dtype)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=added_mask)
    x = x + block.ls_1(block.attn.out_proj(mixed.transpose(1, 2).flatten(2)))
    added: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
    return added
