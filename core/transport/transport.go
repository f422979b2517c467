// Package transport joins processes.
//
// An [Endpoint] is a process's end: it listens, and holds at most one [Link] a peer process and
// kind. A link is an authenticated, ordered stream of frames: a Unix socket between processes of
// one host (where it also hands over the descriptors of shared windows), TCP otherwise. Groups
// (communicators) share links: a frame names its group, its epoch and the ranks it goes between.
//
// A group attaches to an endpoint with a [Handler] for each of its local ranks. Its traffic flows
// over a link only after both sides have proved, for that group, that they hold its secret.
package transport
