"""The rules on calls: permissions, policies, conditions, and the one judgement of a call."""
