"""Facts of biology."""
from runner.importers.quiz.family import Family

CODONS = Family(
    name="codon", domain="Biology", level="L1",
    facts=(
        ("AUG", "methionine"), ("UGG", "tryptophan"), ("UUU", "phenylalanine"), ("GGG", "glycine"), ("AAA", "lysine"),
        ("CCC", "proline"), ("GUU", "valine"), ("CAU", "histidine"),
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
        ("nucleation of microtubules", "centrosome"),
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

FAMILIES = (CODONS, ORGANELLES)
