"""What a schedule does to a recorded trace: the SimPy replay, its timeline, and the fast evaluator."""
