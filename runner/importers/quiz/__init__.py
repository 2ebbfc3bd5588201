"""The bundled task bank `quiz`: true facts and formulas of four domains, asked as four-option questions."""
