"""What a run can be asked: every option once, whichever door it comes through.

What lives here: the model `Options`, and what each of its fields says about its option.
What comes in: values by name, from the words of the command line or from the inputs of the action.
What goes out: a frozen `Options`, which the rooms from `runner/` upwards read.
"""
