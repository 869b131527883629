"""Names for the model of a torch trace (see `tests.benchmarks.kineto_model`): made up, and as long and as many as real ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_WORDS = """
attention backward block bucket cache clone copy dataset dropout embedding encode flatten forward gather grad hidden
index input layer linear loss mask matmul module norm optimizer output pad pool project query reduce reshape residual
scale schedule softmax split stack state step table tensor token transpose update value view weight window
""".split()  # noqa: SIM905 - a line a word would be fifty lines


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the program that all ranks run calls things.

    Attributes:
        operators: Names of operators, each with what its arguments say about its inputs.
        functions: Names of Python calls.
        kernels: Names of kernels, each with how it is launched.
        annotations: Names of annotations.
    """

    operators: tuple[tuple[str, str], ...]
    functions: tuple[str, ...]
    kernels: tuple[tuple[str, str], ...]
    annotations: tuple[str, ...]

    @classmethod
    def draw(cls, random: Random) -> Vocabulary:
        """Draw one."""

        def words(count: int) -> str:
            return "_".join(random.choice(_WORDS) for _ in range(count))

        def operator() -> tuple[str, str]:
            inputs = range(random.randint(1, 5))
            dims = [[random.choice((8, 16, 32, 64, 512)) for _ in range(random.randint(0, 3))] for _ in inputs]
            described = {
                "Concrete Inputs": [random.choice(("", "", "1", "0", "[10, 32]", "False")) for _ in inputs],
                "Input type": [random.choice(("float", "float", "Scalar", "ScalarList", "")) for _ in inputs],
                "Input Strides": [[*row[1:], 1] if row else [] for row in dims],
                "Input Dims": dims,
            }
            return f"aten::{words(1)}", json.dumps(described)[1:-1]

        def function(number: int) -> str:
            if number % 3 == 0:
                return f"<built-in method {words(1)} of {words(1)} object at 0x7f{random.getrandbits(40):010x}>"
            return f"{words(1)}/{words(1)}/{words(1)}.py({random.randint(1, 2500)}): {words(2)}"

        def kernel() -> tuple[str, str]:
            # Templates of templates: up to 700 letters.
            inner = f"{words(2)}_kernel<float, {random.choice((4, 8, 16))}, {words(2)}::{{lambda(float)#1}}>"
            name = f"void {words(2)}<{', '.join([inner] * random.randint(1, 9))}>(int, float const*)"
            return name, _launch(random)

        return cls(
            operators=tuple(operator() for _ in range(120)),
            functions=tuple(function(number) for number in range(280)),
            kernels=tuple(kernel() for _ in range(40)),
            annotations=tuple(f"## {words(3)} ##" for _ in range(12)),
        )


def _launch(random: Random) -> str:
    """Draw how a kernel is launched, as a part of its arguments."""
    return (
        f'      "registers per thread": {random.randint(16, 128)},\n      "shared memory": {random.randint(0, 40) * 512},\n'
        f'      "blocks per SM": {random.random():.4f},\n      "warps per SM": {random.random() * 8:.4f},\n'
        f'      "grid": [{random.randint(1, 999)}, 1, 1],\n      "block": [128, 1, 1],\n'
        f'      "est. achieved occupancy %": {random.randint(0, 90)}'
    )
