//! What a container is to be: from CRI's words, the image and the node's defaults to a bundle. Pure.
