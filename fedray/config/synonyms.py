"""What others call the keys of an experiment: for suggestions alone, no key has two names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "algorithm": ("method", "algo", "strategy", "aggregator", "aggregation"),
        "algorithm.lambda": ("lam", "lamda", "lambda_", "reg_weight"),
        "algorithm.mu": ("mu", "prox_mu", "proximal_mu", "fedprox_mu"),
        "algorithm.tau": ("temperature", "temp", "t"),
        "batch_size": ("batch", "batchsize", "bs", "local_bs", "local_batch_size", "batch_sz"),
        "checkpoint_every": ("save_every", "save_freq", "save_gap", "checkpoint_interval"),
        "clip_grad_norm": ("max_grad_norm", "grad_clip", "gradient_clip_val", "clip_grad"),
        "data.augment": ("augmentation", "augmentations", "transform", "transforms"),
        "data.channels": ("in_channels", "num_channels"),
        "data.clients": (
            *("clients", "num_clients", "n_clients", "nb_clients", "client_num", "total_clients"),
            *("num_users", "n_users", "users", "n_parties", "num_parties", "parties"),
            *("client_num_in_total", "num_supernodes"),
        ),
        "data.image_size": ("img_size", "imgsz", "resolution", "input_size", "im_size"),
        "data.partition": (
            *("partition", "partitioner", "partition_method", "partition_type", "non_iid"),
            *("noniid", "data_split", "iid"),
        ),
        "data.partition.alpha": (
            *("alpha", "dir_alpha", "dirichlet_alpha", "partition_alpha", "concentration"),
            *("dirichlet", "dir", "dirichlet_beta"),
        ),
        "data.root": ("data_dir", "data_path", "data_root", "dataset_path", "dataset_dir", "root"),
        "data.samples": ("num_samples", "n_samples", "subset"),
        "data.source": ("dataset", "datasets", "data_name", "dataset_name", "source"),
        "data.test_fraction": ("test_ratio", "test_size", "test_split"),
        "data.validation_fraction": (
            *("val_fraction", "val_ratio", "val_split", "val_size", "validation_split"),
            *("validation_ratio", "valid_ratio"),
        ),
        "early_stopping.patience": ("patience", "early_stop", "early_stopping_patience"),
        "eval_every": (
            *("eval_gap", "eval_freq", "eval_interval", "test_every", "test_interval"),
            *("evaluate_every", "frequency_of_the_test", "test_freq"),
        ),
        "faults.drop": ("drop_rate", "client_drop_rate", "dropout_rate", "straggler_rate"),
        "gpus": ("gpu", "num_gpus", "n_gpus", "device", "cuda", "use_gpu", "gpu_id"),
        "local_epochs": (
            *("epochs", "epoch", "num_epochs", "n_epochs", "local_epoch", "local_ep", "e"),
            *("num_local_epochs", "client_epochs", "inner_epochs", "local_iterations"),
        ),
        "lr": (
            *("learning_rate", "learningrate", "eta", "step_size", "client_lr", "local_lr"),
            *("local_learning_rate", "lr_client", "lr_local", "client_learning_rate", "init_lr"),
        ),
        "lr_schedule": ("scheduler", "lr_scheduler", "lr_decay", "schedule", "learning_rate_decay"),
        "model.feature_dim": (
            "embed_dim",
            "embedding_dim",
            "feature_size",
            "feat_dim",
            "hidden_dim",
        ),
        "model.group": (
            *("backbone", "net", "network", "arch", "architecture", "model_name", "model_type"),
            *("model_family", "models", "encoder_name"),
        ),
        "model.pretrained": ("weights", "init_weights", "pretrained_path"),
        "optimizer": ("optim", "opt", "optimiser", "optimizer_name"),
        "optimizer.momentum": ("momentum_factor", "sgd_momentum"),
        "optimizer.weight_decay": ("wd", "l2", "l2_reg", "weight_decay_rate"),
        "participation": (
            *(
                "frac",
                "fraction",
                "client_fraction",
                "fraction_fit",
                "fraction_train",
                "join_ratio",
            ),
            *("sample_rate", "sampling_rate", "participation_rate", "client_sample_ratio", "c"),
        ),
        "privacy.clip_norm": ("max_norm", "clipping_norm", "clip_threshold", "sensitivity"),
        "privacy.mode": ("dp", "differential_privacy", "use_dp"),
        "privacy.noise_multiplier": ("sigma", "noise_scale", "dp_sigma", "noise_std"),
        "rounds": (
            *("n_rounds", "num_rounds", "nb_rounds", "global_rounds", "global_round", "round"),
            *("comm_round", "comm_rounds", "communication_rounds", "num_server_rounds"),
            *("global_epochs", "total_rounds", "max_rounds", "iterations"),
        ),
        "seed": ("random_seed", "manual_seed", "rng_seed", "random_state", "seeds"),
        "text.descriptions": ("captions", "class_descriptions", "prompts"),
        "text.encoder": ("text_encoder", "language_model", "text_model", "llm", "plm"),
        "text.template": ("prompt_template", "templates"),
        "threads": ("num_threads", "n_threads", "omp_num_threads"),
        "wire.up_bits": ("bits", "quantize", "quantization_bits", "num_bits", "compression"),
        "workers": ("num_workers", "n_workers", "n_jobs", "num_actors", "parallelism", "processes"),
    }
)
"""Keys, and words of neighbouring tools and papers for the same thing, in small letters."""

CHOOSES: Mapping[str, str] = MappingProxyType(
    {
        "data": "data.source",
        "model": "model.group",
        "text": "text.encoder",
        "report": "report.select",
    }
)
"""Sections, and the key that somebody means who gives one a plain value."""

_KEYS = {word: key for key, words in SYNONYMS.items() for word in words}


def key_for(word: str) -> str | None:
    """The key that others call so; None where it is nobody's word.

    Args:
        word: the last part of an unknown key, with small or large letters, dashes or underscores.
    """
    return _KEYS.get(word.lower().replace("-", "_"))
