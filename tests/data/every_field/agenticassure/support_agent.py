class SupportAgent:
    def run(self, input, context=None):  # noqa: A002 - AgenticAssure's name
        return {"output": "You get it within 30 days."}
