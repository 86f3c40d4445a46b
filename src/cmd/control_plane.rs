//! `agent init --control-plane`: what kubeadm (1.36) does to make a machine the first control-plane node of a cluster.

mod objects;
