"""Answers and rows as people see them: tables, pictures, pages, cards."""
