"""The parts of a child that let it run several attempts in a row."""
