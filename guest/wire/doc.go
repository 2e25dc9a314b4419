// Package wire is the protocol between the host and the agent inside a sandbox, generated from agent.proto, which says
// what it promises.
package wire
