"""Image backbones: `[B, channels, H, W]` to a flat `[B, raw]` vector, one family a file.

The paper's networks follow HtFLlib's layout (FedTSP, CVPR 2026, supplementary C.4): CNN4, GoogLeNet
without batch norm, MobileNetV2 and ResNet4 to ResNet152, each without its classification layer.
The short ones (`mlp`, `cnn2`, `cnn3`, `resnet8s`, `resnet10s`) are ours, for a laptop's CPU.
U-Nets are dense: they give a vector for every pixel, `[B·H·W, raw]`.

Max-pooling comes before ReLU where the layouts have it after: the two commute exactly, values and
gradients, and ReLU then touches a quarter of the numbers.

A file of this folder adds its networks to `fedray.models.architectures.architectures`; nothing
else lists them.
"""
