"""How results look: safe text, tables, messages. Nothing here reads the database."""
