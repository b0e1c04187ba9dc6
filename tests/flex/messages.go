package main

import "time"

// The messages as Go structs without tags, so that encoding/json gives them the names of their fields.

type CreateSessionRequest struct {
	BaseSnapshot string
	SessionID    string
	Quota        int64
	Labels       map[string]string
}

type Session struct {
	ID         string
	State      string
	Mountpoint string
	TurnCount  int
	SnapCount  int
	Created    time.Time
	Labels     map[string]string
	SpaceUsed  int64
}

type ServerCapabilities struct {
	Snapshots         bool
	Rollback          bool
	Pause             bool
	StreamingProgress bool
	TierRouting       bool
}

type CreateSessionResponse struct {
	Session            Session
	ServerCapabilities ServerCapabilities
}

type SessionRequest struct{ SessionID string }
type SessionResponse struct{ Session Session }
type SessionsResponse struct{ Sessions []Session }
type Empty struct{}

type SnapshotRequest struct {
	SessionID string
	Name      string
}

type SnapshotResponse struct {
	SnapshotID string
	TurnNumber int
	SpaceUsed  int64
}

type RollbackRequest struct {
	SessionID  string
	SnapshotID string
}

type SnapshotInfo struct {
	Name      string
	Dataset   string
	Used      int64
	Refer     int64
	CreatedAt time.Time
	Holds     int
}

type SnapshotsResponse struct{ Snapshots []SnapshotInfo }

type Resources struct {
	CPUs  float64
	MemMB int
}

type ToolRequest struct {
	SessionID  string
	ToolCallID string
	ToolName   string
	Params     map[string]any
	Resources  *Resources
}

type ContentBlock struct {
	Type string
	Text string
}

type ToolResponse struct {
	SessionID     string
	ToolCallID    string
	ToolName      string
	Content       string
	ContentBlocks []ContentBlock
	SnapshotID    string
	ExitCode      *int
	Tier          int
	Duration      time.Duration
}

type Progress struct {
	Content string
	IsError bool
}

type ToolFrame struct {
	Progress *Progress
	Response *ToolResponse
}

type LaunchRequest struct {
	SessionID  string
	Binary     string
	Args       []string
	Env        map[string]string
	ExposePort int
}

type LaunchResponse struct {
	ProcessID string
	Address   string
	Status    string
}

type ProcessRequest struct {
	SessionID string
	ProcessID string
}

type KillRequest struct {
	SessionID string
	ProcessID string
	Signal    int
}

type ProcessResponse struct {
	Status   string
	ExitCode *int
}

type HealthResponse struct {
	Status       string
	PoolState    string
	SessionCount int
	ActiveTools  int
	Uptime       time.Duration
	Errors       []string
}
