"""ScienceWorld: a text laboratory. One simulator (a Java process) an episode, each held by a leaf process of its own.

java         where Java is
leaf         the leaf process: drives one simulator, dies with its parent
simulator    the leaf as this process sees it: calls with a time limit
registry     which processes belong to whom, so that the next one can sweep what a dead one left
pool         as many simulators as memory takes, used again and again
prompts      what the student is shown, and how its reply is read
environment  one episode
gold         the oracle's paths: who may have them, their cache, their replay
"""
