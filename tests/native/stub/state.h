/* The scripted state of the fake driver: a text file of "key=value" lines, named by the variable FAKE_NVML_STATE.
 *
 * The file is read again whenever it was replaced (another inode, size or time), so a test writes a new one beside it
 * and renames. Lines that start with '#' are comments; a later line wins over an earlier one of the same key.
 *
 *   device_count=2            cards
 *   driver_version=575.57.08  and other values of the system as a whole
 *   N.KEY=V                   a value of card N           *.KEY=V         of every card that has none of its own
 *   N.mig.M.KEY=V             a value of MIG slice M of card N; a slice exists when it has "mem_total"
 *   N.proc.K=PID:BYTES        compute process K; PID may be "self", BYTES may be "NA"     N.gproc.K   graphics process
 *   ret.FUNCTION=CODE         FUNCTION answers CODE       N.ret.FUNCTION  on card N only  N.ret.*     whatever is asked
 *   delay_ms.FUNCTION=MS      FUNCTION takes that long    N.delay_ms.FUNCTION, N.delay_ms.*           likewise
 *   xid_event=SEQ:N:XID       an Xid error of card N, delivered once for each SEQ
 *
 * A value that the file does not give is NVML_ERROR_NOT_SUPPORTED: nothing is made up here.
 */
#ifndef FAKE_NVML_STATE_H
#define FAKE_NVML_STATE_H

#include <stdbool.h>

/* Reads the file if it is new. False while there has never been one. */
bool state_refresh(void);

/* The text of a key, or NULL. Valid until the next state_refresh. */
const char *state_get(const char *key);

#endif
