"""Case -> Judgement by services over HTTP: the replicas of one, how they are asked, how a judge's words are read."""
