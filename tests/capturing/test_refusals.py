"""What cannot be captured is refused in one line: what is wrong, and what would be right."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidModel, ModelNote
from drlpp.models.task import Task
from tests.support.models.captured_modules import types

X, Y = torch.randn(8, 4), torch.randn(8, 4)


class Layer(nn.Module):
    """A linear layer whose forward does something more, with itself and the result."""

    def __init__(self, more: Callable[[Any, Tensor], Any] = lambda self, x: x) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.more = more
        self.history: list[float] = []
        self.draws = random.Random(0)
        self.cache: Tensor | None = None
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        return self.more(self, self.linear(x))


def of(module: nn.Module, inputs: Any = (X,), loss: Any = F.mse_loss, targets: Any = Y) -> Task:
    return Task(module, inputs, targets, loss)


def doing(more: Callable[[Any, Tensor], Any]) -> Callable[[], Task]:
    return lambda: of(Layer(more))


def with_loss(loss: Any, **others: Any) -> Callable[[], Task]:
    return lambda: of(Layer(), loss=loss)._replace(**others)


def keeps(layer: Layer, x: Tensor) -> Tensor:
    layer.state = x.detach()
    return x


def grows(layer: Layer, x: Tensor) -> Tensor:
    layer.history.append(1.0)
    return x


def hooks(layer: Layer, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: 2 * gradient)
    return x


def autocasts(layer: Layer, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.T


class Doubled(torch.autograd.Function):
    """The gradient is twice what autograd would say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Inherited(Doubled):
    """The forward is another class's."""


class BeforeTheLayer(Layer):
    """Does something with the input."""

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.more(self, x))


def fills(layer: Layer, x: Tensor) -> Tensor:
    x[:, 0] = 0.0
    return x


class TakesADictionary(nn.Linear):
    """Its forward's one argument is a dictionary."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch["x"])


class Remembering(nn.Module):
    """A loss that keeps its last value."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.last = F.mse_loss(outputs, targets)
        return self.last


def hooked(hook: Callable[[Layer], Any]) -> Callable[[], Task]:
    def task() -> Task:
        layer = Layer()
        hook(layer)
        return of(layer)

    return task


def sparse() -> Task:
    module = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4))
    return of(module, (torch.randint(9, (8,)),))


def quoted() -> Task:
    return of(nn.Sequential(nn.ModuleDict({'a"b': nn.Linear(4, 4)})))


def lazy() -> Task:
    return of(nn.Sequential(nn.LazyLinear(4)))


def scripted() -> Task:
    return of(nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.ReLU())))


def quantized() -> Task:
    model = nn.Sequential(nn.Linear(4, 4))
    return of(torch.ao.quantization.quantize_dynamic(model, {nn.Linear}))


def reentrant() -> Task:
    first = BeforeTheLayer(lambda self, x: checkpoint(self.linear, x, use_reentrant=True))
    return of(first)


@torch.library.custom_op("drlpp_tests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return 2 * x


double.register_fake(torch.empty_like)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        # Random numbers that are not torch's.
        (doing(lambda _, x: x.relu() if random.random() < 0.5 else x), "from random,|torch.rand"),
        (doing(lambda _, x: x * numpy.random.rand()), "from numpy.random,|torch.rand"),
        (doing(lambda layer, x: x * layer.draws.random()), "run twice|other random numbers"),
        (with_loss(lambda o, t: F.mse_loss(o, t) * random.random()), "loss of|from random,"),
        # What torch.export would drop.
        (doing(keeps), "attribute state|register_buffer"),
        (doing(grows), "attribute history|register_buffer"),
        (with_loss(Remembering()), "loss of|attribute function.last"),
        (doing(hooks), "hook on the gradient|(test_refusals.py:"),
        (
            hooked(lambda m: m.linear.bias.register_hook(lambda g: g)),
            "module linear|parameter bias",
        ),
        (hooked(lambda m: m.linear.register_full_backward_hook(lambda *_: None)), "linear|hook"),
        (reentrant, "another gradient of linear.|where torch.export does not see it"),
        (doing(lambda _, x: Doubled.apply(x)), "Function Doubled (test_refusals.py:|detach()"),
        (
            with_loss(lambda o, t: Inherited.apply(F.mse_loss(o, t))),
            "the loss of|Function Inherited (test_refusals.py:",
        ),
        # Modules that are no plain modules.
        (lambda: of(nn.DataParallel(nn.Linear(4, 4))), "DataParallel|model.module"),
        (lazy, "uninitialized parameter|LazyModule"),
        (quantized, "module 0 (Linear)|quantized"),
        (scripted, "module 1|TorchScript"),
        (
            lambda: of(nn.utils.spectral_norm(nn.Linear(4, 4))),
            "parametrizations.spectral_norm|hook",
        ),
        (lambda: of(nn.utils.weight_norm(nn.Linear(4, 4))), "parametrizations.weight_norm|hook"),
        (quoted, "'a\"b'|quotation"),
        (lambda: of(nn.Linear(4, 4).eval()), "evaluation mode|module.train()"),
        # Operators.
        (sparse, "embedding|sparse=True"),
        (doing(lambda _, x: x if x.sum() > 0 else -x), "(at test_refusals.py:|torch.where"),
        (doing(lambda _, x: x * int(x.sum())), "(at test_refusals.py:|torch.where"),
        (doing(lambda _, x: x[x > 0]), "shape of|depends on the values"),
        (doing(autocasts), "wrap_with_autocast|outside the model"),
        (doing(lambda _, x: double(x)), "drlpp_tests::double|extension"),
        (doing(lambda _, x: x @ torch.zeros(9)), "does not run|(at test_refusals.py:"),
        (lambda: of(BeforeTheLayer(fills)), "changes its input x|x.clone()"),
        (lambda: of(nn.Identity()), "computes nothing|inputs"),
        # What goes in and comes out.
        (lambda: of(TakesADictionary(4, 4), {"x": X}), "does not run|unexpected keyword argument"),
        (
            lambda: of(Layer(), loss=Y, targets=F.mse_loss),
            "targets|(module, inputs, targets, loss)",
        ),
        (lambda: of(Layer(), loss=None, targets=F.mse_loss), "a function|(module, inputs, targets"),
        (doing(lambda _, x: type("Result", (), {})()), "returns a Result|register_dataclass"),
        (with_loss(F.mse_loss, targets=None), "missing|target"),
        (with_loss(nn.MSELoss), "class MSELoss|MSELoss()"),
        (with_loss(lambda o, t: o.argmax()), "floating-point|mean"),
        (with_loss(lambda o, t: o.square()), "floating-point|shape"),
        (with_loss(lambda o, t: o if o.sum() > 0 else -o), "the loss of|torch.where"),
        (with_loss(lambda o, t: o @ torch.zeros(9)), "the loss of|example inputs: RuntimeError"),
        (with_loss(lambda o, t: o.sum().item()), "number of Python's|without .item()"),
        (with_loss(lambda o, t: o.detach().mean()), "none of its 2 parameters|detach()"),
        (with_loss(F.mse_loss, score=lambda o, t: (o, o)), "score of|one tensor, not 2"),
        (with_loss(F.mse_loss, score=lambda o, t: o.mean()), "score of|one number for each"),
        # What stands for a model.
        (lambda: "convformer.py", "not a file|convformer:FUNCTION"),
        (lambda: nn.Linear(4, 4), "model is a Linear|drlpp.Task(module, inputs, targets, loss"),
        (lambda: 3, "model is a int, which"),
        (lambda: nn.Linear, "its factory raised TypeError: Linear"),
    ],
)
def test_it_is_refused_in_one_line(
    model: Callable[[], Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = model()
    with pytest.raises(InvalidModel) as refused:
        capture(given)
    assert "\n" not in str(refused.value)
    for word in words.split("|"):
        assert word in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_refusing_leaves_the_module_and_torch_as_they_were() -> None:
    for more in (keeps, hooks):
        layer = Layer(more)
        before = set(vars(layer))
        with pytest.raises(InvalidModel):
            capture(of(layer))
        assert set(vars(layer)) == before
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks
    layer(X).sum().backward()
    assert torch.equal(layer.linear.bias.grad, torch.full((4,), 16.0)), "hooks work again"
    inner = nn.Linear(4, 4)
    for reentrantly in (True, False):
        given = torch.randn(2, 4, requires_grad=True)
        checkpoint(inner, given, use_reentrant=reentrantly).sum().backward()
    assert torch.equal(inner.bias.grad, torch.full((4,), 4.0))


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: torch.compile(Layer(), backend="eager"), id="compiled"),
        pytest.param(
            lambda: nn.Sequential(
                nn.Linear(4, 4), parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4)
            ),
            id="spectral norm",
        ),
        pytest.param(lambda: BeforeTheLayer(lambda _, x: x.mul_(2)), id="input in place"),
        pytest.param(lambda: BeforeTheLayer(lambda self, x: self.average.lerp_(x[0], 0.1) + x)),
        pytest.param(
            lambda: nn.Sequential(Layer(), Layer(keeps_an_average)), id="average of what is trained"
        ),
    ],
)
def test_what_looks_alike_trains_as_it_does_by_itself(module: Callable[[], nn.Module]) -> None:
    """Several minibatches: what a buffer holds is of the one before."""
    states = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = module()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = capture(of(model))
        trained = found.module if captured else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(trained(torch.randn(8, 4)), torch.randn(8, 4)).backward()
            optimizer.step()
        states.append(dict(found.task.module.state_dict()))
        assert all(value.grad_fn is None for value in found.task.module.buffers())
    torch.testing.assert_close(states[1], states[0])
    assert not any(name.startswith("_orig_mod") for name in states[1])


def keeps_an_average(layer: Layer, x: Tensor) -> Tensor:
    with torch.no_grad():
        layer.average.mul_(0.9).add_(0.1 * x.mean(0))
    return x - layer.average


def _caches(layer: Layer, x: Tensor) -> Tensor:
    if layer.cache is None:
        layer.cache = torch.arange(4.0)
    return x + layer.cache


def test_a_cache_is_fine_once_it_is_filled() -> None:
    layer = Layer(_caches)
    with pytest.raises(InvalidModel, match="call the module once in its factory"):
        capture(of(layer))
    layer(torch.randn(2, 4))
    assert types(capture(of(layer))) == ["linear", "add"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_computes_the_same_and_is_noted(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    with pytest.warns(ModelNote, match=r"checkpoint \(test_refusals\.py:\d+\) recomputes nothing"):
        captured = capture(of(Checkpointed()))
    assert types(captured) == ["linear", "linear", "dropout", "relu"]
