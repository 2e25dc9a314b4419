// Package caisson holds the nouns of the product, and nothing that runs.
//
// Caisson runs code that AI agents write, each piece in a Linux machine of its own.
//
//   - A sandbox ([Sandbox]) is one isolated machine: its own kernel, root disk and network gateway.
//   - A template ([Template]) is the filesystem a sandbox starts from; it is named name:tag and resolved to a digest.
//   - A command ([Command]) is a process tree started in a sandbox. It has an id, and its life is a list of events
//     ([CommandEvent]) numbered from 1, which can be replayed from any number.
//   - A driver ([Driver] in package machine) is how machines are made.
//   - A shim is the one host process of a sandbox; an agent is the process number 1 inside it.
//   - A team owns every object; a key ([Key]) says who may do what.
//
// The interfaces here are what the API is served from: [Sandboxes] for the life of sandboxes, [Guest] for what happens
// inside one, [Keys], [Events], [Templates]. Package control implements them over the contracts node and store.
// Errors are of one type, [Error], whose [Kind] decides the HTTP status, the exit code and whether a retry can help.
//
// The package imports the standard library only.
package caisson
