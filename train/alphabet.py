"""The characters that training pictures show."""

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LOWER = UPPER.lower()
DIGITS = "0123456789"
MARKS = "-.:/$%#&+"
ALPHABET = UPPER + LOWER + DIGITS + MARKS + " "
