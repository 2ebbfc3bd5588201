"""Facts of physics; the constants are computed from the defining ones."""
from runner.importers.quiz.family import Family
from runner.importers.quiz.formulas import derived_constants, three_figures

UNITS = Family(
    name="si-unit", domain="Physics", level="L1",
    facts=(
        ("force", "newton"), ("energy", "joule"), ("power", "watt"), ("pressure", "pascal"),
        ("electric charge", "coulomb"), ("voltage", "volt"), ("electric resistance", "ohm"), ("capacitance", "farad"),
        ("inductance", "henry"), ("frequency", "hertz"), ("temperature", "kelvin"), ("illuminance", "lux"),
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
        ("centripetal acceleration", "v²/r"), ("charge on a capacitor", "CV"), ("density", "m/V"),
        ("period of a pendulum", "2π√(L/g)"),
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

CONSTANTS = Family(
    name="constant", domain="Physics", level="L3",
    facts=tuple((name, three_figures(value)) for name, value in derived_constants().items()),
    statements=(
        "The value of the {s} in SI units is {a}.",
        "In SI units the {s} equals {a}.",
        "To three figures the {s} is {a}.",
        "Tables give for the {s} the value {a}.",
    ),
    train_questions=(
        "What is the value of the {s} in SI units?",
        "In SI units the {s} equals what?",
        "Which value do tables give for the {s}?",
        "To three figures, what is the {s}?",
    ),
    eval_questions=(
        "Which value has the {s} in SI units?",
        "The {s} equals what value?",
    ),
)

INSTRUMENTS = Family(
    name="instrument", domain="Physics", level="L1",
    facts=(
        ("barometer", "air pressure"), ("ammeter", "electric current"), ("hygrometer", "humidity"),
        ("anemometer", "wind speed"), ("seismometer", "ground motion"), ("calorimeter", "heat"),
        ("tachometer", "rotation speed"), ("dosimeter", "radiation dose"), ("accelerometer", "acceleration"),
        ("viscometer", "viscosity"), ("magnetometer", "magnetic field"), ("refractometer", "refractive index"),
    ),
    statements=(
        "The instrument called {s} measures {a}.",
        "A laboratory uses the {s} to measure {a}.",
        "The quantity read from the {s} is {a}.",
        "The scale of the {s} shows {a}.",
    ),
    train_questions=(
        "What does the {s} measure?",
        "Which quantity is read from the {s}?",
        "The scale of the {s} shows which quantity?",
        "A laboratory uses the {s} to measure what?",
    ),
    eval_questions=(
        "Which quantity does the instrument called {s} measure?",
        "What is the quantity that the {s} shows?",
    ),
)

FAMILIES = (UNITS, FORMULAS, CONSTANTS, INSTRUMENTS)
