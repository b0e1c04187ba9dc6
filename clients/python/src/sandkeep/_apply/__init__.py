"""Bringing the changes of a sandbox to a local directory: `guard` refuses, `plan` compares, `staging` carries out."""
