"""How the bundled checkpoint `tiny` was made: pictures, questions, model, training, export."""
