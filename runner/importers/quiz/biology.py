"""Facts of biology."""
from runner.importers.quiz.family import Family

CODONS = Family(
    name="codon", domain="Biology", level="L1",
    facts=(
        ("AUG", "methionine"), ("UGG", "tryptophan"), ("UUU", "phenylalanine"), ("GGG", "glycine"),
        ("AAA", "lysine"), ("CCC", "proline"), ("GUU", "valine"), ("CAU", "histidine"),
        ("UAU", "tyrosine"), ("ACU", "threonine"), ("UGU", "cysteine"), ("CGU", "arginine"),
    ),
    statements=(
        "The codon {s} codes for the amino acid {a}.",
        "In messenger RNA the codon {s} encodes {a}.",
        "The ribosome reads {s} and adds the amino acid {a}.",
        "The amino acid encoded by the codon {s} is {a}.",
    ),
    train_questions=(
        "Which amino acid does the codon {s} code for?",
        "What does the codon {s} encode?",
        "The ribosome reads {s} and adds which amino acid?",
        "Name the amino acid encoded by {s}.",
    ),
    eval_questions=(
        "The codon {s} encodes which amino acid?",
        "What is the amino acid that {s} codes for in messenger RNA?",
    ),
)

ORGANELLES = Family(
    name="organelle", domain="Biology", level="L1",
    facts=(
        ("photosynthesis", "chloroplast"), ("aerobic respiration", "mitochondrion"), ("protein synthesis", "ribosome"),
        ("storage of chromosomes", "nucleus"), ("digestion by acid hydrolases", "lysosome"),
        ("packaging of proteins for secretion", "Golgi apparatus"), ("ribosomal RNA synthesis", "nucleolus"),
        ("nucleation of microtubules", "centrosome"), ("swimming by a whip-like beat", "flagellum"),
        ("storage of water and turgor in plants", "vacuole"), ("breakdown of hydrogen peroxide", "peroxisome"),
        ("steroid synthesis and drug detoxification", "smooth endoplasmic reticulum"),
    ),
    statements=(
        "In the cell, {s} is the task of the {a}.",
        "The part of the cell responsible for {s} is the {a}.",
        "The structure for {s} is the {a}.",
        "A cell carries out {s} with its {a}.",
    ),
    train_questions=(
        "Which part of the cell is responsible for {s}?",
        "In the cell, {s} is the task of which structure?",
        "Name the structure for {s}.",
        "What does a cell use for {s}?",
    ),
    eval_questions=(
        "Which structure of the cell carries out {s}?",
        "The cell part for {s} is called what?",
    ),
)

HORMONES = Family(
    name="hormone", domain="Biology", level="L1",
    facts=(
        ("insulin", "pancreas"), ("thyroxine", "thyroid gland"), ("cortisol", "adrenal cortex"),
        ("melatonin", "pineal gland"), ("growth hormone", "anterior pituitary"), ("parathormone", "parathyroid gland"),
        ("testosterone", "testis"), ("estradiol", "ovary"), ("erythropoietin", "kidney"), ("gastrin", "stomach"),
        ("leptin", "adipose tissue"), ("adrenaline", "adrenal medulla"),
    ),
    statements=(
        "The hormone {s} is secreted mainly by the {a}.",
        "The main source of {s} in the body is the {a}.",
        "{s} is a hormone made in the {a}.",
        "The organ that releases {s} is the {a}.",
    ),
    train_questions=(
        "Where is the hormone {s} mainly secreted?",
        "What is the main source of {s} in the body?",
        "Which organ releases {s}?",
        "In which tissue or organ is {s} made?",
    ),
    eval_questions=(
        "Which organ is the main source of the hormone {s}?",
        "The hormone {s} is made in which part of the body?",
    ),
)

GENERA = Family(
    name="genus", domain="Biology", level="L1",
    facts=(
        ("human", "Homo"), ("dog", "Canis"), ("cat", "Felis"), ("horse", "Equus"), ("cow", "Bos"), ("pig", "Sus"),
        ("mouse", "Mus"), ("chicken", "Gallus"), ("honey bee", "Apis"), ("fruit fly", "Drosophila"),
        ("maize", "Zea"), ("rice", "Oryza"),
    ),
    statements=(
        "The {s} belongs to the genus {a}.",
        "The scientific genus of the {s} is {a}.",
        "Taxonomy places the {s} in the genus {a}.",
        "The genus name given to the {s} is {a}.",
    ),
    train_questions=(
        "To which genus does the {s} belong?",
        "What is the scientific genus of the {s}?",
        "Taxonomy places the {s} in which genus?",
        "Name the genus of the {s}.",
    ),
    eval_questions=(
        "The {s} belongs to which genus?",
        "Which genus name does taxonomy give to the {s}?",
    ),
)

FAMILIES = (CODONS, ORGANELLES, HORMONES, GENERA)
