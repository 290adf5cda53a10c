"""torch.compile of the same work: the function that `torch_reference` makes of the kernel."""

from __future__ import annotations

from coda_lang.bench.peers import AbsentError, Arguments, Options, Peer, Task
from coda_lang.binding import Binding


def find(binding: Binding, library: str, options: Options) -> Peer:
    """Compiled anew for each call's extents, with `dynamic=False`.

    Raises:
        AbsentError: the arrays are not torch's.
    """
    if library != "torch":
        raise AbsentError("torch sees no GPU here")
    import torch

    from coda_lang.bench.torch_reference import reference

    made = reference(binding)
    torch._dynamo.reset()
    function = torch.compile(made.function, dynamic=False, backend=options.backend)

    def prepare(arguments: Arguments) -> Task:
        positional = made.positional(arguments)
        return Task(lambda: function(*positional), lambda found: dict(zip(made.outputs, found, strict=True)))

    return Peer(prepare)
