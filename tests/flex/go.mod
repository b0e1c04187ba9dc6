module sandkeep/tests/flex

go 1.25.0

require connectrpc.com/connect v1.19.1

require google.golang.org/protobuf v1.36.9 // indirect
