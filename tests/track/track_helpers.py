from assay.records import Group, Prompt, Rollout, Segment, Verdict


def group_of(answers, prompt_id="p1", admission=0, gold="7", question="What is 3 + 4?"):
    """A group of ``(text, reward or None)``."""
    prompt = Prompt(prompt_id, ({"role": "user", "content": question},), f"<user>{question}", (1, 2), {"answer": gold})
    rollouts, verdicts = [], []
    for index, (text, reward) in enumerate(answers):
        tokens = tuple(range(len(text) + 1))
        segment = Segment("policy", tokens, (-0.5,) * len(tokens), (index,) * len(tokens))
        rollouts.append(Rollout(prompt_id, index, (segment,), "stop", text))
        outcome = "verifier_error" if reward is None else "scored"
        verdicts.append(Verdict(reward, outcome, {"number": reward}, text or None, 0.1, "compared", reward))
    return Group(prompt, tuple(rollouts), tuple(verdicts), admission)
