"""How a node that cannot simply be dialed is reached: what it finds out about its own reachability, hole
punching, and circuits through relays, as service and as client. May import `routing`, nothing else.

    reachability, targets, contacts, rate    pure: evidence and verdict, and what may be probed
    reach_wire, probes, dialback, prober     `/panal/reach/1`, both sides
    punch_plan, punch                        `/panal/punch/1`
    hop_wire, reservations                   pure: circuit relay v2 and who gets a place in it
    service, circuit, circuit_stream         the relay, and who uses one
    websocket, websocket_listener            the same where only HTTPS gets out
    netcheck, dial_ends                      one look at all of it, for people
"""
