"""Units and formulas of physics."""
from runner.importers.quiz.family import Family

UNITS = Family(
    name="si-unit", domain="Physics", level="L1",
    facts=(
        ("force", "newton"), ("energy", "joule"), ("power", "watt"), ("pressure", "pascal"),
        ("electric charge", "coulomb"), ("voltage", "volt"), ("electric resistance", "ohm"), ("capacitance", "farad"),
    ),
    statements=(
        "The SI unit of {s} is the {a}.",
        "In the SI, {s} is measured in the unit {a}.",
        "Physicists state {s} in the unit {a}.",
        "The unit used for {s} is called the {a}.",
    ),
    train_questions=(
        "What is the SI unit of {s}?",
        "In which unit is {s} measured?",
        "Physicists state {s} in which unit?",
        "Name the unit used for {s}.",
    ),
    eval_questions=(
        "Which SI unit is used for {s}?",
        "In the SI, what is the unit of {s} called?",
    ),
)

FORMULAS = Family(
    name="formula", domain="Physics", level="L1",
    facts=(
        ("kinetic energy", "mv²/2"), ("momentum", "mv"), ("weight", "mg"), ("gravitational potential energy", "mgh"),
        ("rest energy", "mc²"), ("photon energy", "hf"), ("spring energy", "kx²/2"), ("electric power", "VI"),
    ),
    statements=(
        "The formula for {s} is {a}.",
        "In symbols, {s} equals {a}.",
        "To compute {s} one uses the expression {a}.",
        "The expression that gives {s} is {a}.",
    ),
    train_questions=(
        "What is the formula for {s}?",
        "In symbols, {s} equals what?",
        "Which expression gives {s}?",
        "To compute {s} one uses which expression?",
    ),
    eval_questions=(
        "Which formula gives {s}?",
        "What is the expression for {s} in symbols?",
    ),
)

FAMILIES = (UNITS, FORMULAS)
