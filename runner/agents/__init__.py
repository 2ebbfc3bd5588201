"""Who acts in a container: a language model through a terminal or a menu, or one of the two anchors that need no model."""
