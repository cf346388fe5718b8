"""DRL-PP's Table 1, typed from the paper."""

from __future__ import annotations

from dataclasses import dataclass

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


PAPER = {
    "resnet50": _row("ResNet-50", "4 (DP)", 0.051, 0.158, 0.051, 0.051),
    "vgg16": _row("VGG-16", "3-1", 0.165, 0.193, 0.107, 0.082),
    "alexnet": _row("AlexNet", "3-1", 0.057, 0.068, 0.012, 0.010),
    "resnext50": _row("ResNeXt-101", "3-1", 0.125, 0.297, 0.125, 0.116),
    "gnmt4": _row("GNMT-4", "1-1-1-1", 1.082, 1.141, 0.841, 0.689),
}
"""Of our models; the paper's ResNeXt is larger than ours."""
