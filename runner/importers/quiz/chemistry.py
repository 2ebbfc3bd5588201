"""Facts of chemistry; molar masses are computed."""
from runner.importers.quiz.family import Family
from runner.importers.quiz.formulas import molar_mass

SYMBOLS = Family(
    name="symbol", domain="Chemistry", level="L1",
    facts=(
        ("sodium", "Na"), ("iron", "Fe"), ("gold", "Au"), ("silver", "Ag"), ("copper", "Cu"), ("lead", "Pb"),
        ("tin", "Sn"), ("mercury", "Hg"),
    ),
    statements=(
        "The chemical symbol of {s} is {a}.",
        "In the periodic table {s} is written {a}.",
        "Chemists write the element {s} as {a}.",
        "The element {s} has the symbol {a}.",
    ),
    train_questions=(
        "What is the chemical symbol of {s}?",
        "How is {s} written in the periodic table?",
        "Which symbol does the element {s} have?",
        "Chemists write {s} as what?",
    ),
    eval_questions=(
        "The element {s} has which chemical symbol?",
        "In the periodic table, what is the symbol of {s}?",
    ),
)

MOLAR_MASSES = Family(
    name="molar-mass", domain="Chemistry", level="L3",
    facts=tuple((name, f"{molar_mass(formula):.2f}") for name, formula in (
        ("water", "H2O"), ("methane", "CH4"), ("ammonia", "NH3"), ("carbon dioxide", "CO2"), ("table salt", "NaCl"),
        ("glucose", "C6H12O6"), ("sulfuric acid", "H2SO4"), ("ethanol", "C2H5OH"),
    )),
    statements=(
        "The molar mass of {s} in g/mol is {a}.",
        "One mole of {s} has a mass in grams of {a}.",
        "The weight of a mole of {s} in grams is {a}.",
        "Adding its atomic weights, {s} has a molar mass of {a}.",
    ),
    train_questions=(
        "What is the molar mass of {s} in g/mol?",
        "How many grams does one mole of {s} weigh?",
        "Adding its atomic weights, what molar mass has {s}?",
        "Give the mass of one mole of {s} in grams.",
    ),
    eval_questions=(
        "Which molar mass in g/mol has {s}?",
        "What is the mass in grams of a mole of {s}?",
    ),
)

FAMILIES = (SYMBOLS, MOLAR_MASSES)
