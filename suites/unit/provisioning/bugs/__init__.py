"""One test for each defect that other projects had in production, or that a review of them found.

A test's name begins with the number of its defect in the regression corpus. If a project
(AgentBaker, aks-gpu or kaito) had a report of the defect, its name and the report's number follow.
Nobody had reported the defects 25 to 29.
"""
