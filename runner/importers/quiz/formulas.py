"""Answers that follow from a formula are computed here, so that no figure of the quiz is typed in twice."""
import math
import re

#: Standard atomic weights, abridged (IUPAC 2021), g/mol.
ATOMIC_WEIGHTS = {
    "H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999, "F": 18.998, "Na": 22.990, "Mg": 24.305, "Al": 26.982,
    "Si": 28.085, "P": 30.974, "S": 32.06, "Cl": 35.45, "K": 39.098, "Ca": 40.078, "Fe": 55.845, "Cu": 63.546,
}

# Exact since the 2019 revision of the SI, in SI units; the last three are CODATA 2022 values.
LIGHT_SPEED = 299792458.0
PLANCK = 6.62607015e-34
ELEMENTARY_CHARGE = 1.602176634e-19
BOLTZMANN = 1.380649e-23
AVOGADRO = 6.02214076e23
ELECTRON_MASS = 9.1093837139e-31
FINE_STRUCTURE = 7.2973525643e-3
GRAVITATION = 6.67430e-11


def molar_mass(formula: str) -> float:
    """Sum of standard atomic weights in g/mol; `formula` may hold one level of parentheses, as in Ca(OH)2."""
    total = 0.0
    for group, group_count, element, count in re.findall(r"\(([^()]+)\)(\d*)|([A-Z][a-z]?)(\d*)", formula):
        if group:
            total += molar_mass(group) * int(group_count or 1)
        else:
            total += ATOMIC_WEIGHTS[element] * int(count or 1)
    return total


def derived_constants() -> dict[str, float]:
    """Constants in SI units from the defining ones: k_B N_A, e N_A, 2π⁵k⁴/15h³c², eħ/2m_e, ħ/αm_e c and so on."""
    reduced_planck = PLANCK / (2 * math.pi)
    stefan_boltzmann = 2 * math.pi**5 * BOLTZMANN**4 / (15 * PLANCK**3 * LIGHT_SPEED**2)
    bohr_radius = reduced_planck / (FINE_STRUCTURE * ELECTRON_MASS * LIGHT_SPEED)
    vacuum_permittivity = ELEMENTARY_CHARGE**2 / (2 * FINE_STRUCTURE * PLANCK * LIGHT_SPEED)
    return {
        "speed of light": LIGHT_SPEED,
        "Planck constant": PLANCK,
        "elementary charge": ELEMENTARY_CHARGE,
        "Boltzmann constant": BOLTZMANN,
        "Avogadro constant": AVOGADRO,
        "electron mass": ELECTRON_MASS,
        "gravitational constant": GRAVITATION,
        "molar gas constant": BOLTZMANN * AVOGADRO,
        "Faraday constant": ELEMENTARY_CHARGE * AVOGADRO,
        "Stefan-Boltzmann constant": stefan_boltzmann,
        "Bohr radius": bohr_radius,
        "vacuum permittivity": vacuum_permittivity,
    }


def three_figures(value: float) -> str:
    """Three significant figures: plain between 0.1 and 10,000, otherwise as 6.63e-34."""
    if 0.1 <= abs(value) < 1e4:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"
