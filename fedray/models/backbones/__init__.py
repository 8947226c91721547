"""Image backbones, which map `[B, channels, H, W]` to vectors `[B, raw]`, one family per file.

The paper's networks follow HtFLlib (FedTSP, CVPR 2026, supplementary C.4): CNN4, GoogLeNet without
batch norm, MobileNetV2 and ResNet4 to ResNet152, each without its classification layer. The small
networks `mlp`, `cnn2`, `cnn3` and `resnet8s` are ours, for a laptop's CPU. U-Nets are
dense: they return a vector for every pixel, `[B·H·W, raw]`.

Max-pooling precedes ReLU even where the original networks have the opposite order. Both orders give
exactly equal values and gradients, and ReLU then processes a quarter of the numbers.

Each file registers its networks with `fedray.models.architectures.architectures`.
"""
