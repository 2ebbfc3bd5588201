"""Facts of materials science. Temperatures and gaps are rounded textbook values."""
from runner.importers.quiz.family import Family

ORES = Family(
    name="ore", domain="Material", level="L1",
    facts=(
        ("hematite", "iron"), ("bauxite", "aluminium"), ("galena", "lead"), ("cinnabar", "mercury"),
        ("sphalerite", "zinc"), ("cassiterite", "tin"), ("chalcopyrite", "copper"), ("pentlandite", "nickel"),
        ("chromite", "chromium"), ("ilmenite", "titanium"), ("wolframite", "tungsten"), ("stibnite", "antimony"),
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
        ("nitinol", "nickel and titanium"), ("sterling silver", "silver and copper"), ("electrum", "gold and silver"),
        ("cupronickel", "copper and nickel"), ("zamak", "zinc and aluminium"), ("galinstan", "gallium, indium and tin"),
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

BAND_GAPS = Family(
    name="band-gap", domain="Material", level="L1",
    facts=(
        ("silicon", "1.12"), ("germanium", "0.66"), ("gallium arsenide", "1.42"), ("gallium nitride", "3.4"),
        ("indium arsenide", "0.35"), ("indium antimonide", "0.17"), ("gallium phosphide", "2.26"),
        ("cadmium sulfide", "2.42"), ("cadmium selenide", "1.74"), ("diamond", "5.5"), ("aluminium nitride", "6.2"),
        ("aluminium arsenide", "2.16"),
    ),
    statements=(
        "The band gap of {s} at room temperature in eV is about {a}.",
        "The semiconductor {s} has a band gap of about {a}.",
        "In {s} the gap between valence and conduction band in eV is {a}.",
        "At room temperature {s} has a gap in eV of {a}.",
    ),
    train_questions=(
        "What is the band gap of {s} in eV?",
        "About which band gap has the semiconductor {s}?",
        "How many eV lie between valence and conduction band in {s}?",
        "Give the gap of {s} in eV at room temperature.",
    ),
    eval_questions=(
        "Which band gap in eV has {s} at room temperature?",
        "In eV, what is the gap of the semiconductor {s}?",
    ),
)

MELTING_POINTS = Family(
    name="melting-point", domain="Material", level="L1",
    facts=(
        ("tungsten", "3422"), ("iron", "1538"), ("copper", "1085"), ("aluminium", "660"), ("lead", "327"),
        ("tin", "232"), ("zinc", "420"), ("gold", "1064"), ("silver", "962"), ("nickel", "1455"),
        ("titanium", "1668"), ("platinum", "1768"),
    ),
    statements=(
        "The melting point of {s} in degrees Celsius is {a}.",
        "The metal {s} melts at a temperature of {a}.",
        "In degrees Celsius {s} turns liquid at {a}.",
        "Solid {s} melts in a furnace at {a}.",
    ),
    train_questions=(
        "What is the melting point of {s} in degrees Celsius?",
        "At what temperature does {s} melt?",
        "At how many degrees Celsius does {s} turn liquid?",
        "Solid {s} melts in a furnace at which temperature?",
    ),
    eval_questions=(
        "Which melting point has the metal {s}?",
        "In degrees Celsius, at what temperature melts {s}?",
    ),
)

FAMILIES = (ORES, ALLOYS, BAND_GAPS, MELTING_POINTS)
