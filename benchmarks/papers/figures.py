"""The papers' figures, typed from their tables."""

from __future__ import annotations

from dataclasses import dataclass

from pandas import DataFrame

PIPEDREAM_TABLE_1 = DataFrame(
    [
        ("VGG-16, ImageNet", "4x4 (A)", "15-1", "5.28×", "5.28×"),
        ("VGG-16, ImageNet", "2x8 (B)", "15-1", "2.98×", "2.46×"),
        ("ResNet-50, ImageNet", "4x4 (A)", "16", "1×", "1×"),
        ("ResNet-50, ImageNet", "2x8 (B)", "16", "1×", "1×"),
        ("AlexNet, synthetic", "4x4 (A)", "15-1", "4.92×", "N/A"),
        ("AlexNet, synthetic", "2x8 (B)", "15-1", "2.04×", "N/A"),
        ("GNMT-16, WMT16", "1x4 (A)", "straight", "1.46×", "2.2×"),
        ("GNMT-16, WMT16", "4x4 (A)", "straight", "2.34×", "2.92×"),
        ("GNMT-16, WMT16", "2x8 (B)", "straight", "3.14×", "3.14×"),
        ("GNMT-8, WMT16", "1x4 (A)", "straight", "1.5×", "1.5×"),
        ("GNMT-8, WMT16", "3x4 (A)", "straight", "2.95×", "2.95×"),
        ("GNMT-8, WMT16", "2x8 (B)", "16", "1×", "1×"),
        ("AWD LM, Penn Treebank", "1x4 (A)", "straight", "4.25×", "4.25×"),
        ("S2VT, MSVD", "4x1 (C)", "2-1-1", "3.01×", "3.01×"),
    ],
    columns=["model, data", "servers × GPUs", "configuration", "epoch time", "time to accuracy"],
)
"""Speed-ups of PipeDream over data parallelism."""

PIPEOPTIM_TABLE_V = DataFrame(
    [
        ("AlexNet", "SGDM", "1250", "1240", "1260", "1260", "1250", "1260"),
        ("ResNet-101", "SGDM", "86", "86", "86", "90", "86", "86"),
        ("Inception-V3", "SGDM", "84", "84", "84", "84", "84", "84"),
        ("VGG-16", "AdamW", "2105", "2120", "2120", "–", "2800", "2800"),
        ("GoogleNet", "AdamW", "230", "290", "300", "–", "310", "295"),
        ("Residual LSTM", "AdamW", "3500", "3820", "3820", "–", "3820", "3820"),
        ("GNMT-8", "Adam", "130", "136", "140", "–", "142", "142"),
        ("GNMT-16", "Adam", "124", "116", "120", "–", "120", "120"),
    ],
    columns=[
        "model",
        "optimizer",
        "GPipe",
        "PipeDream",
        "2BW",
        "SpecTrain",
        "XPipe",
        "PipeOptim",
    ],
)
"""The largest minibatch of a GPU; GPipe's is that of a microbatch."""

PIPEOPTIM_TABLE_VI = DataFrame(
    [
        ("ResNet-101", "GPipe", "66.12", "1554.07 s", "26.00 h"),
        ("ResNet-101", "PipeDream", "66.62", "918.15 s", "13.47 h"),
        ("ResNet-101", "2BW", "66.58", "911.35 s", "15.14 h"),
        ("ResNet-101", "SpecTrain", "66.19", "914.78 s", "16.77 h"),
        ("ResNet-101", "XPipe", "66.53", "920.21 s", "16.34 h"),
        ("ResNet-101", "PipeOptim", "66.69", "915.48 s", "12.91 h"),
        ("Inception-V3", "GPipe", "56.89", "1106.46 s", "13.12 h"),
        ("Inception-V3", "PipeDream", "55.74", "656.29 s", "8.57 h"),
        ("Inception-V3", "2BW", "55.55", "664.21 s", "11.25 h"),
        ("Inception-V3", "SpecTrain", "55.57", "671.02 s", "8.57 h"),
        ("Inception-V3", "XPipe", "56.21", "679.84 s", "8.25 h"),
        ("Inception-V3", "PipeOptim", "55.91", "667.16 s", "7.76 h"),
    ],
    columns=["model", "method", "top-1 accuracy in %", "time of an epoch", "time to accuracy"],
)

PIPEMARE_TABLES_2_AND_3 = DataFrame(
    [
        ("CIFAR10", "PipeDream", "94.8", "100%", "2.70×"),
        ("CIFAR10", "GPipe", "95.0", "7%", "1× (270 MB)"),
        ("CIFAR10", "T1", "95.0", "100%", "1×"),
        ("CIFAR10", "T2", "94.5", "100%", "1.33×"),
        ("CIFAR10", "T1+T2", "95.0", "100%", "1.33×"),
        ("ImageNet", "PipeDream", "74.7", "100%", "1.61×"),
        ("ImageNet", "GPipe", "76.0", "13%", "1× (293 MB)"),
        ("ImageNet", "T1+T2", "75.5", "100%", "1.33×"),
        ("ImageNet", "T1+T2+W", "75.9", "33%", "1.33×"),
        ("IWSLT14 (BLEU)", "PipeDream", "0.0", "100%", "2.06×"),
        ("IWSLT14 (BLEU)", "GPipe", "34.5", "17%", "1× (0.65 GB)"),
        ("IWSLT14 (BLEU)", "T1", "34.1", "100%", "1×"),
        ("IWSLT14 (BLEU)", "T2", "0.0", "100%", "1.25×"),
        ("IWSLT14 (BLEU)", "T1+T2", "34.1", "100%", "1.25×"),
        ("IWSLT14 (BLEU)", "T1+T2+W", "34.5", "42%", "1.25×"),
        ("WMT17 (BLEU)", "PipeDream", "0.0", "100%", "2.39×"),
        ("WMT17 (BLEU)", "GPipe", "27.5", "56%", "1× (1.01 GB)"),
        ("WMT17 (BLEU)", "T1+T2", "27.0", "100%", "1.25×"),
        ("WMT17 (BLEU)", "T1+T2+W", "27.8", "96%", "1.25×"),
    ],
    columns=["data", "method", "score", "utilisation", "weights and optimizer"],
)

AGENT = "agent"
"""Stands for whichever agent it was."""


@dataclass(frozen=True)
class PaperRow:
    """drl-pp Table 1 and its analysis: seconds by method, and the configuration of DRL-PP's."""

    model: str
    seconds: dict[str, float]
    configuration: str

    def over(self, method: str) -> str:
        """Return DRL-PP's speed-up over a method."""
        return f"{self.seconds[method] / self.seconds[AGENT]:.2f}×"


def _row(
    model: str, configuration: str, dp: float, gpipe: float, pipedream: float, drl_pp: float
) -> PaperRow:
    seconds = {"data-parallel": dp, "gpipe": gpipe, "pipedream": pipedream, AGENT: drl_pp}
    return PaperRow(model, seconds, configuration)


DRL_PP_TABLE_1 = {
    "resnet50": _row("ResNet-50", "4 (DP)", 0.051, 0.158, 0.051, 0.051),
    "vgg16": _row("VGG-16", "3-1", 0.165, 0.193, 0.107, 0.082),
    "alexnet": _row("AlexNet", "3-1", 0.057, 0.068, 0.012, 0.010),
    "resnext50": _row("ResNeXt-101", "3-1", 0.125, 0.297, 0.125, 0.116),
    "gnmt4": _row("GNMT-4", "1-1-1-1", 1.082, 1.141, 0.841, 0.689),
}
"""Of our models; the paper's ResNeXt is larger than ours."""
