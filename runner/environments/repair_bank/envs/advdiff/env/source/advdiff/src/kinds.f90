! Working precision and the constants every module shares.
module kinds
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  integer, parameter :: dp = real64
  real(dp), parameter :: pi = acos(-1.0_dp)
  integer, parameter :: ghosts = 2   ! the third-order upwind flux reaches two cells upstream
end module kinds
