module example/superpacket-check

go 1.19
