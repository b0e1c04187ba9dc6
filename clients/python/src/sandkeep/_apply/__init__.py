"""Bringing the changes of a sandbox to a local directory: `plan` describes it, `guard` refuses, `staging` carries out."""
