"""Answer questions with a trained network: who is this, and are these the same?"""
