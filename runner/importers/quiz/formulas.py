"""Answers that follow from a formula are computed, so that no figure of the quiz is typed in."""
import re

#: Standard atomic weights, abridged (IUPAC 2021), g/mol.
ATOMIC_WEIGHTS = {
    "H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999, "F": 18.998, "Na": 22.990, "Mg": 24.305, "Al": 26.982,
    "Si": 28.085, "P": 30.974, "S": 32.06, "Cl": 35.45, "K": 39.098, "Ca": 40.078, "Fe": 55.845, "Cu": 63.546,
}


def molar_mass(formula: str) -> float:
    """Sum of standard atomic weights in g/mol; `formula` may hold one level of parentheses, as in Ca(OH)2."""
    total = 0.0
    for group, group_count, element, count in re.findall(r"\(([^()]+)\)(\d*)|([A-Z][a-z]?)(\d*)", formula):
        if group:
            total += molar_mass(group) * int(group_count or 1)
        else:
            total += ATOMIC_WEIGHTS[element] * int(count or 1)
    return total
