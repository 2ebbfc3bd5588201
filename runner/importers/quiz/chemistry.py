"""Facts of chemistry; molar masses are computed."""
from runner.importers.quiz.family import Family
from runner.importers.quiz.formulas import molar_mass

SYMBOLS = Family(
    name="symbol", domain="Chemistry", level="L1",
    facts=(
        ("sodium", "Na"), ("iron", "Fe"), ("gold", "Au"), ("silver", "Ag"), ("copper", "Cu"), ("lead", "Pb"),
        ("tin", "Sn"), ("mercury", "Hg"), ("antimony", "Sb"), ("magnesium", "Mg"), ("manganese", "Mn"), ("zinc", "Zn"),
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

ATOMIC_NUMBERS = Family(
    name="atomic-number", domain="Chemistry", level="L1",
    facts=(
        ("helium", "2"), ("carbon", "6"), ("nitrogen", "7"), ("oxygen", "8"), ("neon", "10"), ("aluminium", "13"),
        ("silicon", "14"), ("sulfur", "16"), ("chlorine", "17"), ("argon", "18"), ("calcium", "20"), ("titanium", "22"),
    ),
    statements=(
        "The atomic number of {s} is {a}.",
        "An atom of {s} has this number of protons: {a}.",
        "The number of protons in the nucleus of {s} is {a}.",
        "The element {s} stands in the periodic table at number {a}.",
    ),
    train_questions=(
        "What is the atomic number of {s}?",
        "How many protons does an atom of {s} have?",
        "At which number does {s} stand in the periodic table?",
        "Give the number of protons in the nucleus of {s}.",
    ),
    eval_questions=(
        "Which atomic number does the element {s} have?",
        "What is the number of protons in {s}?",
    ),
)

MOLAR_MASSES = Family(
    name="molar-mass", domain="Chemistry", level="L3",
    facts=tuple((name, f"{molar_mass(formula):.2f}") for name, formula in (
        ("water", "H2O"), ("methane", "CH4"), ("ammonia", "NH3"), ("carbon dioxide", "CO2"), ("table salt", "NaCl"),
        ("glucose", "C6H12O6"), ("sulfuric acid", "H2SO4"), ("ethanol", "C2H5OH"), ("benzene", "C6H6"),
        ("slaked lime", "Ca(OH)2"), ("nitric acid", "HNO3"), ("acetic acid", "CH3COOH"),
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

COMPOUNDS = Family(
    name="compound", domain="Chemistry", level="L1",
    facts=(
        ("quicklime", "CaO"), ("baking soda", "NaHCO3"), ("saltpetre", "KNO3"), ("caustic soda", "NaOH"),
        ("laughing gas", "N2O"), ("potash", "K2CO3"), ("limestone", "CaCO3"), ("rust", "Fe2O3"),
        ("blue vitriol", "CuSO4"), ("silica", "SiO2"), ("hydrochloric acid", "HCl"), ("phosphoric acid", "H3PO4"),
    ),
    statements=(
        "The chemical formula of {s} is {a}.",
        "The compound known as {s} is {a}.",
        "In formulas {s} is written {a}.",
        "The main compound in {s} has the formula {a}.",
    ),
    train_questions=(
        "What is the chemical formula of {s}?",
        "Which compound is known as {s}?",
        "How is {s} written in formulas?",
        "Give the formula of the main compound in {s}.",
    ),
    eval_questions=(
        "The compound {s} has which chemical formula?",
        "Which formula is written for {s}?",
    ),
)

FAMILIES = (SYMBOLS, ATOMIC_NUMBERS, MOLAR_MASSES, COMPOUNDS)
