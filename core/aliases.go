package core

import (
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/checkpoint"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/metrics"
	"github.com/goccl/goccl/core/work"
)

// The kinds of errors. Every error of this package wraps one of them, for errors.Is.
var (
	ErrInvalidArgument = fault.ErrInvalidArgument
	ErrTimeout         = fault.ErrTimeout
	ErrAborted         = fault.ErrAborted
	ErrPeerFailed      = fault.ErrPeerFailed
	ErrMismatch        = fault.ErrMismatch
	ErrUnsupported     = fault.ErrUnsupported
	ErrSystem          = fault.ErrSystem
	ErrInternal        = fault.ErrInternal
	ErrRevoked         = fault.ErrRevoked
	ErrInvalidHandle   = fault.ErrInvalidHandle
	ErrNoQuorum        = fault.ErrNoQuorum
	ErrExcluded        = fault.ErrExcluded
)

// Error is the error of all functions of this package.
type Error = fault.Error

// Loaded is a version of the models that [Comm.LoadCheckPoint] returns.
type Loaded = checkpoint.Loaded

// Stats is what the communicators of a process have done.
type Stats = metrics.Stats

// Orphan is a local model of a rank that has ended.
type Orphan = checkpoint.Orphan

// Operation is one collective, send or receive.
type Operation = call.Operation

// Work is one or several operations that were started together.
type Work = work.Work

// AnySource as Root of a Recv matches a send of any rank.
const AnySource = call.AnySource

// WireDType is as which dtype the elements of an operation travel.
type WireDType = call.Wire

// OwnDType is their own.
const OwnDType = call.OwnDType

// Version is the library's.
const Version = config.Version

// Config says which communicator to make. Zero fields mean the default.
type Config = config.Config

// Getenv gives the settings that no field of a [Config] gives.
var Getenv = config.Getenv

// Setting is the value of a setting, as it was given, and where that comes from.
type Setting = config.Setting

// The sources of a [Setting].
const (
	SourceDefault     = config.SourceDefault
	SourceEnvironment = config.SourceEnvironment
	SourceOption      = config.SourceOption
)

// What Init takes where a Config field is empty, and the environment says nothing.
const (
	DefaultTimeout       = config.DefaultTimeout
	DefaultLivenessGrace = config.DefaultLivenessGrace
)

// The environment that Init reads where a Config field is empty.
const (
	EnvTimeout    = config.EnvTimeout
	EnvGrace      = config.EnvGrace
	EnvMinSize    = config.EnvMinSize
	EnvTransport  = config.EnvTransport
	EnvNet        = config.EnvNet
	EnvThresholds = config.EnvThresholds
	EnvSchedule   = config.EnvSchedule
	EnvAlgorithms = config.EnvAlgorithms
	EnvWireDType  = config.EnvWireDType
	EnvSideStep   = config.EnvSideStep
	EnvLinks      = config.EnvLinks
	EnvQuorum     = config.EnvQuorum
	EnvRecovery   = config.EnvRecovery
	EnvInterface  = config.EnvInterface
	EnvSecret     = config.EnvSecret
	EnvStore      = config.EnvStore
	EnvJoin       = config.EnvJoin
	EnvRestarts   = config.EnvRestarts
)

// Who goes on where members cannot reach each other: see [Config].
const (
	QuorumMajority = config.QuorumMajority
	QuorumAny      = config.QuorumAny
)

// What becomes of a collective in which a member dies: see [Config].
const (
	RecoveryStep      = config.RecoveryStep
	RecoverySurvivors = config.RecoverySurvivors
	RecoveryAll       = config.RecoveryAll
)
