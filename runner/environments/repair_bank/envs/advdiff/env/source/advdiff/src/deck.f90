! The input deck: one namelist that names the case, the grid, the physics and the output.
module deck
  use kinds, only: dp
  implicit none

  type :: deck_t
    character(len=24) :: case = ''           ! initial condition, and exact solution where one exists
    character(len=24) :: flow = 'none'       ! none, uniform, rotation, cellular
    character(len=24) :: flux = 'upwind3'    ! upwind3, central2
    character(len=24) :: stepper = 'ssprk3'  ! ssprk2, ssprk3
    character(len=24) :: kinetics = 'none'   ! none, decay, fisher, or a name in data/patterns.dat
    character(len=24) :: sides(4) = 'periodic'  ! west, east, south, north: periodic, wall, outflow, inflow
    integer :: nx = 32, ny = 32, species = 1, frames = 4
    real(dp) :: length_x = 1.0_dp, length_y = 1.0_dp, time_end = 1.0_dp, courant = 0.4_dp
    real(dp) :: speed_x = 0.0_dp, speed_y = 0.0_dp, decay = 0.0_dp, inflow_value = 1.0_dp
    real(dp) :: diffusivity(2) = 0.0_dp
  end type deck_t

contains

  function read_deck(path) result(d)
    character(len=*), intent(in) :: path
    type(deck_t) :: d
    character(len=24) :: case, flow, flux, stepper, kinetics, sides(4)
    integer :: nx, ny, species, frames, unit, status
    real(dp) :: length_x, length_y, time_end, courant, speed_x, speed_y, decay, inflow_value, diffusivity(2)
    character(len=200) :: message
    namelist /run/ case, flow, flux, stepper, kinetics, sides, nx, ny, species, frames, length_x, length_y, &
      time_end, courant, speed_x, speed_y, decay, inflow_value, diffusivity

    case = d%case; flow = d%flow; flux = d%flux; stepper = d%stepper; kinetics = d%kinetics; sides = d%sides
    nx = d%nx; ny = d%ny; species = d%species; frames = d%frames
    length_x = d%length_x; length_y = d%length_y; time_end = d%time_end; courant = d%courant
    speed_x = d%speed_x; speed_y = d%speed_y; decay = d%decay; inflow_value = d%inflow_value
    diffusivity = d%diffusivity

    open(newunit=unit, file=path, status='old', action='read', iostat=status, iomsg=message)
    if (status == 0) read(unit, nml=run, iostat=status, iomsg=message)
    if (status /= 0) error stop 'deck: '//trim(message)
    close(unit)
    d = deck_t(case, flow, flux, stepper, kinetics, sides, nx, ny, species, frames, length_x, length_y, &
      time_end, courant, speed_x, speed_y, decay, inflow_value, diffusivity)
    if (d%flux /= 'upwind3' .and. d%flux /= 'central2') error stop 'deck: flux must be upwind3 or central2'
  end function read_deck

end module deck
