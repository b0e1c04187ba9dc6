module sandkeep/tests/network-clients/web

go 1.19
