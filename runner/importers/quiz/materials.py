"""Facts of materials science."""
from runner.importers.quiz.family import Family

ORES = Family(
    name="ore", domain="Material", level="L1",
    facts=(
        ("hematite", "iron"), ("bauxite", "aluminium"), ("galena", "lead"), ("cinnabar", "mercury"),
        ("sphalerite", "zinc"), ("cassiterite", "tin"), ("chalcopyrite", "copper"), ("pentlandite", "nickel"),
    ),
    statements=(
        "The mineral {s} is an ore of {a}.",
        "From {s} the smelter wins the metal {a}.",
        "The metal extracted mainly from {s} is {a}.",
        "Mines dig {s} as a source of {a}.",
    ),
    train_questions=(
        "The mineral {s} is an ore of which metal?",
        "Which metal is extracted mainly from {s}?",
        "What metal does the smelter win from {s}?",
        "Mines dig {s} as a source of what?",
    ),
    eval_questions=(
        "Which metal has {s} as an ore?",
        "What is extracted from the mineral {s}?",
    ),
)

ALLOYS = Family(
    name="alloy", domain="Material", level="L1",
    facts=(
        ("brass", "copper and zinc"), ("bronze", "copper and tin"), ("soft solder", "tin and lead"),
        ("nichrome", "nickel and chromium"), ("steel", "iron and carbon"), ("invar", "iron and nickel"),
        ("nitinol", "nickel and titanium"), ("sterling silver", "silver and copper"),
    ),
    statements=(
        "The alloy {s} consists mainly of {a}.",
        "The main elements in {s} are {a}.",
        "To make {s} one melts together {a}.",
        "Metallurgists alloy to {s} the elements {a}.",
    ),
    train_questions=(
        "What does the alloy {s} mainly consist of?",
        "Which are the main elements in {s}?",
        "To make {s} one melts together which elements?",
        "Name the elements of the alloy {s}.",
    ),
    eval_questions=(
        "Which elements does {s} mainly consist of?",
        "What are the main elements of the alloy {s}?",
    ),
)

FAMILIES = (ORES, ALLOYS)
