"""One file a check type, named as `check.type` has it: putting one here is all that a new type takes."""
