"""Recognise the mark: texts in, evidence and verdicts out; numpy alone, never torch."""
